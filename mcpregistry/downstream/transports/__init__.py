"""How bytes get to a server: stdio, streamable HTTP, SSE and WebSocket, on the SDK's transport
seam.

They know nothing of the pool that keeps them, nor of tools.
"""
