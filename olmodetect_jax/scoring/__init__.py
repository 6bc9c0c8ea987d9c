"""From token ids to stored token statistics: plan, jitted pass, store."""
