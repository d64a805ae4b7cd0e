"""What every channel shows texts with: marking, folding, words. Pure."""
