"""Requests to servers: raw protocols, browsers, certificates, and servers to try clients on."""
