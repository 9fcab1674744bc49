package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}, Timeout: 10 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sluice/explain?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, fmt.Errorf("no sluice is running on %s (%w); set --socket, or set --kubeconfig or --source to plan without it", socket, op.Err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	x := new(Explanation)
	if err := json.NewDecoder(resp.Body).Decode(x); err != nil {
		return nil, fmt.Errorf("decode the answer of the running sluice: %w", err)
	}
	return x, nil
}
