package state

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

	"github.com/sluice-proxy/sluice/host/model"
)

// Explain asks the agent that runs on this node to explain a Service.
func Explain(ctx context.Context, socket string, name model.Name) (*Explanation, error) {
	return explain(ctx, socket, url.Values{"namespace": {name.Namespace}, "service": {name.Name}})
}

// ExplainWithRequests is Explain with Explanation.Requests.
func ExplainWithRequests(ctx context.Context, socket string, name model.Name) (*Explanation, error) {
	return explain(ctx, socket, url.Values{"namespace": {name.Namespace}, "service": {name.Name}, "requests": {"true"}})
}

func explain(ctx context.Context, socket string, q url.Values) (*Explanation, error) {
	x, err := get[Explanation](ctx, socket, "/explain?"+q.Encode())
	if errors.As(err, new(*NotRunningError)) {
		err = fmt.Errorf("%w; set --socket, or set --kubeconfig or --source to plan without it", err)
	}
	return x, err
}

// ReadStatus asks the agent that runs on this node for its state.
func ReadStatus(ctx context.Context, socket string) (*Status, error) {
	return get[Status](ctx, socket, "/status")
}

// ReadDrains asks the agent that runs on this node for the endpoints that drain.
func ReadDrains(ctx context.Context, socket string) (*Drains, error) {
	return get[Drains](ctx, socket, "/drains")
}

// ReadTrace asks the agent that runs on this node what happens to a connection.
func ReadTrace(ctx context.Context, socket string, q *FlowQuery) (*Traced, error) {
	v := url.Values{"from": {q.From}, "to": {q.To}, "protocol": {q.Protocol}, "interface": {q.Interface}, "namespace": {q.Namespace}}
	return get[Traced](ctx, socket, "/trace?"+v.Encode())
}

// NotRunningError is the error of a request if no agent listens on the socket.
type NotRunningError struct {
	Socket string
	Err    error
}

// Error implements error.
func (e *NotRunningError) Error() string {
	return fmt.Sprintf("no sluice is running on %s (%v)", e.Socket, e.Err)
}

// Unwrap returns Err.
func (e *NotRunningError) Unwrap() error { return e.Err }

// answerTimeout bounds a request: counting connections in a table of a million entries takes seconds.
const answerTimeout = 15 * time.Second

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 256 << 20

// SetLogLevel sets the level of the log of the agent that runs on this node.
func SetLogLevel(ctx context.Context, socket string, level slog.Level) error {
	_, err := request[struct{}](ctx, socket, http.MethodPut, "/log-level?"+url.Values{"level": {level.String()}}.Encode())
	return err
}

// ReadLog asks the agent that runs on this node for the last lines of its log.
func ReadLog(ctx context.Context, socket string) (*LogTail, error) {
	return get[LogTail](ctx, socket, "/log")
}

// get reads one resource.
func get[T any](ctx context.Context, socket, resource string) (*T, error) {
	return request[T](ctx, socket, http.MethodGet, resource)
}

// ReadText reads a resource as it is, at most limit bytes of it.
func ReadText(ctx context.Context, socket, resource string, limit int64) ([]byte, error) {
	var text []byte
	err := do(ctx, socket, http.MethodGet, resource, func(body io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(body, limit))
		return err
	})
	return text, err
}

func request[T any](ctx context.Context, socket, method, resource string) (*T, error) {
	x := new(T)
	err := do(ctx, socket, method, resource, func(body io.Reader) error {
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
func do(ctx context.Context, socket, method, resource string, read func(io.Reader) error) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}, Timeout: answerTimeout}
	req, err := http.NewRequestWithContext(ctx, method, "http://sluice"+resource, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return &NotRunningError{socket, op.Err}
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
