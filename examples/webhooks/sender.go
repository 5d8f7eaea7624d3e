package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"time"

	"github.com/outboxgen/outboxgen/examples/webhooks/internal/hookbox"
)

// sender delivers events to endpoints.
type sender struct {
	client    *http.Client // one of newClient
	endpoints table
	now       func() time.Time // of the clock that is compared with those of the endpoints
}

// newClient returns a client that follows no redirect: what is signed for one
// address goes to no other.
func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Event sends an event to its endpoint.
func (s *sender) Event(ctx context.Context, d hookbox.Delivery, e hookbox.Event) hookbox.Outcome {
	to, err := s.endpoints.find(ctx, e.EndpointID)
	switch {
	case errors.Is(err, errNoEndpoint):
		return hookbox.Failed(err)
	case err != nil:
		return hookbox.Retry(err)
	}
	// Without a connection nothing was sent. One that is made, or taken up again,
	// is told of before the request is written to it.
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	request, err := s.request(ctx, to, d)
	if err != nil {
		return hookbox.Failed(err)
	}
	response, err := s.client.Do(request)
	switch {
	case errors.Is(err, errPrivateAddress):
		return hookbox.Failed(errPrivateAddress)
	case err != nil && !connected:
		return hookbox.Unreachable(withoutURL(err))
	case err != nil:
		return hookbox.Unknown(withoutURL(err))
	}
	defer response.Body.Close()
	io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection can be used again
	if response.StatusCode == http.StatusGone {
		if err := s.endpoints.switchOff(ctx, e.EndpointID); err != nil {
			return hookbox.Retry(err)
		}
	}
	return outcome(response, s.now())
}

// request makes the request of a delivery, signed as by Standard Webhooks: over
// the id, which is the same at every attempt, the time, so that nobody can send
// it again later, and the bytes as they were enqueued.
func (s *sender) request(ctx context.Context, to endpoint, d hookbox.Delivery) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, bytes.NewReader(d.Raw))
	if err != nil {
		return nil, withoutURL(err)
	}
	id, at := d.ID.String(), strconv.FormatInt(s.now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", at)
	request.Header.Set("Webhook-Signature", sign(to.secret, id, at, d.Raw))
	return request, nil
}

func sign(secret []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// outcome says what an answer means.
func outcome(response *http.Response, now time.Time) hookbox.Outcome {
	status := response.StatusCode
	err := fmt.Errorf("the endpoint has answered %d %s", status, http.StatusText(status))
	switch {
	case status >= 200 && status < 300:
		return hookbox.Completed()
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		if wait, ok := retryAfter(response.Header.Get("Retry-After"), now); ok {
			return hookbox.RetryAfter(wait, err)
		}
		return hookbox.Retry(err)
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		return hookbox.Retry(err)
	default:
		return hookbox.Failed(err) // it was refused, or is to be sent elsewhere
	}
}

// longestWait is how long an endpoint can have an event wait at the most.
const longestWait = 12 * time.Hour

// retryAfter reads the header Retry-After, seconds or a date, as in RFC 9110,
// section 10.2.3.
func retryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, longestWait), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(0, at.Sub(now)), longestWait), true
}

// withoutURL takes the URL out of an error, since it may hold a secret.
func withoutURL(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}
