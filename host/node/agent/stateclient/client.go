// Package stateclient reads the state of a running agent.
package stateclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// Client reads the state of an agent.
type Client struct {
	agent  string // for errors
	client *http.Client
	token  string
}

// OnSocket returns a client of the agent that serves its state on a Unix socket of this node.
func OnSocket(path string) *Client {
	return NewClient("on "+path, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}, "")
}

// NewClient returns a client that connects with dial. agent says in errors which one it is: "on node n1". token is the bearer
// token of requests, "" for none.
func NewClient(agent string, dial func(context.Context) (net.Conn, error), token string) *Client {
	return &Client{agent, &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}, Timeout: answerTimeout}, token}
}

// Explain asks the agent to explain a Service, with Explanation.Requests if requests is set.
func (c *Client) Explain(ctx context.Context, name api.Name, requests bool) (*api.Explanation, error) {
	q := url.Values{"namespace": {name.Namespace}, "service": {name.Name}}
	if requests {
		q.Set("requests", "true")
	}
	return get[api.Explanation](ctx, c, "/explain?"+q.Encode())
}

// Services asks the agent for its Services in a namespace, or in all if it is "".
func (c *Client) Services(ctx context.Context, namespace string) (*api.Services, error) {
	return get[api.Services](ctx, c, "/services?"+url.Values{"namespace": {namespace}}.Encode())
}

// Status asks the agent for its state.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	return get[api.Status](ctx, c, "/status")
}

// Drains asks the agent for the endpoints that drain.
func (c *Client) Drains(ctx context.Context) (*api.Drains, error) {
	return get[api.Drains](ctx, c, "/drains")
}

// Trace asks the agent what happens to a connection.
func (c *Client) Trace(ctx context.Context, q *api.FlowQuery) (*api.Traced, error) {
	v := url.Values{"from": {q.From}, "to": {q.To}, "protocol": {q.Protocol}, "interface": {q.Interface}, "namespace": {q.Namespace}}
	return get[api.Traced](ctx, c, "/trace?"+v.Encode())
}

// NotRunningError is the error of a request if no agent answers.
type NotRunningError struct {
	Agent string // as given to NewClient
	Err   error
}

// Error implements error.
func (e *NotRunningError) Error() string {
	return fmt.Sprintf("no sluice is running %s (%v)", e.Agent, e.Err)
}

// Unwrap returns Err.
func (e *NotRunningError) Unwrap() error { return e.Err }

// answerTimeout bounds a request: counting connections in a table of a million entries takes seconds.
const answerTimeout = 15 * time.Second

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 256 << 20

// SetLogLevel sets the level of the agent's log.
func (c *Client) SetLogLevel(ctx context.Context, level slog.Level) error {
	_, err := request[struct{}](ctx, c, http.MethodPut, "/log-level?"+url.Values{"level": {level.String()}}.Encode())
	return err
}

// Log asks the agent for the last lines of its log.
func (c *Client) Log(ctx context.Context) (*api.LogTail, error) {
	return get[api.LogTail](ctx, c, "/log")
}

// Text reads a resource as it is, at most limit bytes of it.
func (c *Client) Text(ctx context.Context, resource string, limit int64) ([]byte, error) {
	var text []byte
	err := c.do(ctx, http.MethodGet, resource, func(body io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(body, limit))
		return err
	})
	return text, err
}

// get reads one resource.
func get[T any](ctx context.Context, c *Client, resource string) (*T, error) {
	return request[T](ctx, c, http.MethodGet, resource)
}

func request[T any](ctx context.Context, c *Client, method, resource string) (*T, error) {
	x := new(T)
	err := c.do(ctx, method, resource, func(body io.Reader) error {
		if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(x); err != nil {
			return fmt.Errorf("decode the answer of the running sluice: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// do makes a request, and calls read with the answer.
func (c *Client) do(ctx context.Context, method, resource string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://sluice"+resource, nil)
	if err != nil {
		return err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return &NotRunningError{c.agent, op.Err}
		}
		if u := (*url.Error)(nil); errors.As(err, &u) {
			return u.Err // the address is that of no server
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	return read(resp.Body)
}
