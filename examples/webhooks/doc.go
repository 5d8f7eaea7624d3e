// Command webhooks sends events to the endpoints of customers over HTTP.
//
// Every request is signed as by Standard Webhooks, every answer becomes an
// outcome, and every endpoint has limits of its own: one that is dead, or slow,
// stops no other.
package main

//go:generate go run ../../cmd/outboxgen generate
