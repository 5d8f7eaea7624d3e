package outbox

// Payload is the content of a message: one of the package's payload types.
type Payload interface {
	// Validate reports every rule that the payload breaks, as a
	// [*ValidationError]. Enqueue calls it; reading never does, so that a rule
	// which came later does not lock out what was stored before.
	Validate() error
	// MarshalJSON writes the bytes that are stored.
	MarshalJSON() ([]byte, error)

	payloadType() string
	payloadVersion() int32
}

// codecKey tells the shapes of stored payloads apart.
type codecKey struct {
	payloadType string
	version     int32
}

// readPayload reads a stored payload of the type P.
func readPayload[P Payload, D decodable[P]](data []byte) (Payload, error) {
	payload, err := decodeText[P, D](data)
	if err != nil {
		return nil, err
	}
	return payload, nil
}
