"""Messages that nobody sees until somebody decides."""
