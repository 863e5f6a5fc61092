"""Translation look-aside buffers."""
