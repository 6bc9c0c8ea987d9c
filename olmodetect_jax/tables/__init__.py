"""The paper's tables, made from runs and from a verified benchmark."""
