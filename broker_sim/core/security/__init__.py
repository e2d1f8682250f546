"""The principal of a client, and what it may do: logins by SASL, principals, the authorizer."""
