"""Where datasets come from: archives, downloads, formats, memory."""
