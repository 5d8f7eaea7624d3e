// Command orders is a small order service that tells five other systems what it
// does, through an outbox.
//
// It starts a Postgres of its own and takes orders, of which one is rolled back.
// One worker dies after it has sent messages and before it has had an answer;
// another delivers these once their claims have run out, and all others. What
// became of every row is printed.
package main

//go:generate go run ../../cmd/outboxgen generate
