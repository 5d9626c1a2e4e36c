"""Methods of other authors, which specs name once this package is installed."""
