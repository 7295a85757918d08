"""Clients of servers: raw protocols, browsers, certificates, and servers for tests of hfx's client."""
