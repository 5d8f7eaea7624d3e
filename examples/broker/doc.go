// Command broker moves the events of an order service from its outbox to a
// stream of NATS JetStream: those of one order in their order, and each of them
// once although an acknowledgement may be lost.
//
// It is a module of its own, so that what it needs is no requirement of
// outboxgen. Its tests take Postgres from there; nothing else does.
package main

//go:generate go run -C ../.. ./cmd/outboxgen generate -f examples/broker/outbox.yaml
