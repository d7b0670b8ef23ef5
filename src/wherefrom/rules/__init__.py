"""The interception core: a forward pass whose torch calls are made locally linear."""
