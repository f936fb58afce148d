"""Predictions for rows of tables, calibrations kept on disk, and aiconfigurator's estimates."""
