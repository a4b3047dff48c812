//! The RIB against a naive model.
