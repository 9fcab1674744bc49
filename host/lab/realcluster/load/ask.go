package load

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// Ask makes a connection and returns the server's name and the client's address that it saw, or else the Failure.
func Ask(ctx context.Context, addr string, timeout time.Duration) string {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/source", nil)
	if err != nil {
		return err.Error()
	}
	answer, err := client.Do(request)
	if err != nil {
		return string(classify(err))
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return string(classify(err))
	}
	return strings.TrimSpace(string(text))
}
