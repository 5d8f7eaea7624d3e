// Command orders is a small order service that tells five other systems what it
// does, through an outbox.
//
// It starts a Postgres of its own, takes orders, of which one is rolled back,
// delivers with two workers that compete, one of which dies while it holds
// rows, and prints what became of every row.
package main

//go:generate go run ../../cmd/outboxgen generate
