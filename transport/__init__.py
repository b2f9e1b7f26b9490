"""The wire: the Realtime protocol's codec, the websocket shell and the server."""
