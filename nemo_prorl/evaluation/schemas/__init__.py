"""One file a family of schemas: how a publisher's record becomes a problem."""
