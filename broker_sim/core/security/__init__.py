"""Who a client is, and what it may do: logins by SASL, principals, the authorizer."""
