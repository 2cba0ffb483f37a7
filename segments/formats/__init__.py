"""Formats of other systems, a file or a folder each, with codecs like ``item.Format``."""
