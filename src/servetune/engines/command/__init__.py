"""Any command line that starts a server."""
