"""Files that go into a bundle as they stand."""
