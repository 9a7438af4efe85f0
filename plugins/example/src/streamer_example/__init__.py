"""Two storages for streamer; see docs/write-a-plugin.md."""
