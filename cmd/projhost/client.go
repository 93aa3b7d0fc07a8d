package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/projhost/projhost/host/api"
)

// client calls the HTTP API of a host: a running one, or a server of our own
// over a store that this process opened.
type client struct {
	base  string // http://host:port
	token string
	actor string // who is at work, of calls that change something
	http  *http.Client
	local bool
	close func() error
}

// answerError is an error answer of the API.
type answerError struct {
	Status  int
	Code    string
	Message string
	Index   int // of the event or line to blame, -1 if none
}

func (e *answerError) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// lostCallError is a call that has no answer: whether it was done is not known.
type lostCallError struct {
	what string // was under way
	base string
	err  error
}

func (e *lostCallError) Error() string { return fmt.Sprintf("%s %s: %v", e.what, e.base, e.err) }
func (e *lostCallError) Unwrap() error { return e.err }

// answerMax bounds what is read of one answer.
const answerMax = 1 << 30

// call sends a request and returns the body of a success.
func (c *client) call(ctx context.Context, method, path string, query url.Values, body []byte) ([]byte, http.Header, error) {
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, reader)
	if err != nil {
		return nil, nil, fmt.Errorf("call %s: %w", c.base, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.actor != "" && method != http.MethodGet {
		req.Header.Set(api.ActorHeader, c.actor)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, errInterrupted
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // its text repeats method and address
		}
		return nil, nil, &lostCallError{"call the host at", c.base, err}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, errInterrupted
		}
		return nil, nil, &lostCallError{"read the answer of", c.base, err}
	}
	if resp.StatusCode >= 300 {
		if c.local && ctx.Err() != nil {
			return nil, nil, errInterrupted // whatever our own server makes of it
		}
		return nil, resp.Header, c.answerError(resp, answer)
	}
	return bytes.TrimRight(answer, "\n"), resp.Header, nil
}

// hint says in terms of the command line what the API says in its own.
func (c *client) hint(e *answerError) {
	switch {
	case e.Status == http.StatusUnauthorized:
		e.Message = fmt.Sprintf("%s wants a token: give it with --token or PROJHOST_TOKEN", c.base)
	case e.Code == api.CodeProjectionHalted, e.Code == api.CodeProjectionPaused, e.Code == api.CodeKeyHeld:
		e.Message = strings.Replace(e.Message, "stale=ok reads", "--stale ok reads", 1)
	case e.Code == api.CodeNotCaughtUp && c.local:
		e.Message += ": no host is running; start one with projhost run"
	}
}

func (c *client) answerError(resp *http.Response, body []byte) error {
	var envelope struct {
		Error struct {
			Code    string   `json:"code"`
			Message string   `json:"message"`
			Index   *int     `json:"index"`
			Reasons []string `json:"reasons"`
			// Of a consumer that is in use.
			Instances []string `json:"instances"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &envelope) != nil || envelope.Error.Code == "" {
		return fmt.Errorf("%s answers %s, and not as a projhost does: is it another service?", c.base, resp.Status)
	}
	e := &answerError{Status: resp.StatusCode, Code: envelope.Error.Code, Message: envelope.Error.Message, Index: -1}
	if envelope.Error.Index != nil {
		e.Index = *envelope.Error.Index
	}
	if e.Code == api.CodeNotReady && len(envelope.Error.Reasons) > 0 {
		// In one line, as some errors of databases have several.
		e.Message += ": " + strings.Join(strings.Fields(strings.Join(envelope.Error.Reasons, "; ")), " ")
	}
	if e.Code == api.CodeInUse && len(envelope.Error.Instances) > 0 {
		e.Message += ": " + strings.Join(envelope.Error.Instances, ", ")
	}
	c.hint(e)
	return e
}

// get decodes the answer of a GET.
func (c *client) get(ctx context.Context, path string, query url.Values, into any) error {
	body, _, err := c.call(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", c.base, err)
	}
	return nil
}

// alive reports whether a projhost answers.
func (c *client) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var health struct {
		Service string `json:"service"`
	}
	return c.get(ctx, "/healthz", nil, &health) == nil && health.Service == "projhost"
}

// path joins escaped parts.
func path(parts ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, p := range parts {
		b.WriteByte('/')
		// A lone dot would be taken for a step in the path.
		if p == "." || p == ".." {
			p = strings.ReplaceAll(p, ".", "%2E")
			b.WriteString(p)
			continue
		}
		b.WriteString(url.PathEscape(p))
	}
	return b.String()
}

// inProcess answers requests by a handler, without a network.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	a := &answer{header: http.Header{}, status: http.StatusOK}
	t.handler.ServeHTTP(a, r)
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Header: a.header, Request: r,
		Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()),
	}, nil
}

// answer is a response kept in memory.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
