package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reviews is an Authorizer.Review that counts.
type reviews struct {
	mu    sync.Mutex
	n     int
	block chan struct{} // nil: answer at once
	err   error
}

func (v *reviews) review(ctx context.Context, token string) error {
	v.mu.Lock()
	v.n++
	err, block := v.err, v.block
	v.mu.Unlock()
	if block != nil {
		<-block
	}
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(token, "good"):
		return nil
	case strings.HasPrefix(token, "weak"):
		return fmt.Errorf("%w: no", ErrForbidden)
	}
	return ErrUnauthenticated
}

func (v *reviews) authorizer() *Authorizer {
	return &Authorizer{Review: v.review, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
}

// send sends a request and returns its code. The resource does not exist, so that 404 means that the caller may read.
func send(z *Authorizer, method, header string) int {
	r := httptest.NewRequest(method, "/nothing", nil)
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	w := httptest.NewRecorder()
	z.Handler(Agent{Metrics: http.NotFoundHandler()}).ServeHTTP(w, r)
	return w.Code
}

func TestStateIsReadOnlyByWhoMay(t *testing.T) {
	v := &reviews{}
	z := v.authorizer()
	for _, c := range []struct {
		method, header string
		want           int
	}{
		{"GET", "Bearer good", http.StatusNotFound},
		{"GET", "Bearer weak", http.StatusForbidden},
		{"GET", "Bearer bad", http.StatusUnauthorized},
		{"GET", "", http.StatusUnauthorized},
		{"GET", "Bearer ", http.StatusUnauthorized},
		{"GET", "Basic Z29vZDpnb29k", http.StatusUnauthorized},
		{"GET", "Bearer good" + strings.Repeat("x", maxToken), http.StatusUnauthorized},
		{"PUT", "Bearer good", http.StatusMethodNotAllowed},
		{"POST", "Bearer good", http.StatusMethodNotAllowed},
		{"HEAD", "Bearer good", http.StatusMethodNotAllowed},
	} {
		if got := send(z, c.method, c.header); got != c.want {
			t.Errorf("%s with %.20q: %d, want %d", c.method, c.header, got, c.want)
		}
	}
	if v.n != 3 {
		t.Errorf("%d reviews, want 3", v.n)
	}
	v.err = errors.New("the API server does not answer")
	for range 2 { // which is not remembered
		if got := send(z, "GET", "Bearer other"); got != http.StatusServiceUnavailable {
			t.Errorf("without an answer: %d", got)
		}
	}
	if v.n != 5 {
		t.Errorf("%d reviews, want 5", v.n)
	}
}

func TestReviewsAreRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &reviews{}
		z := v.authorizer()
		for _, step := range []struct {
			after time.Duration
			token string
			n     int // reviews so far
		}{
			{0, "good", 1}, {allowedFor - 1, "good", 1}, {1, "good", 2},
			{0, "bad", 3}, {refusedFor - 1, "bad", 3}, {1, "bad", 4},
			{0, "weak", 5}, {refusedFor, "weak", 6},
		} {
			time.Sleep(step.after)
			if send(z, "GET", "Bearer "+step.token); v.n != step.n {
				t.Errorf("%s, %s later: %d reviews, want %d", step.token, step.after, v.n, step.n)
			}
		}
	})
}

func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &reviews{}
		z := v.authorizer()
		flood := func(n int) (refused int) {
			for i := range n {
				if send(z, "GET", fmt.Sprint("Bearer bad", time.Now().UnixNano(), i)) == http.StatusTooManyRequests {
					refused++
				}
			}
			return refused
		}
		if refused := flood(1000); refused != 1000-reviewBurst {
			t.Errorf("%d of 1000 refused", refused)
		}
		time.Sleep(3 * reviewInterval)
		if refused := flood(1000); refused != 997 {
			t.Errorf("%d of 1000 refused after three intervals", refused)
		}
		if len(z.remembered) > maxRemembered {
			t.Errorf("%d tokens are remembered", len(z.remembered))
		}
		time.Sleep(time.Hour)
		if v.block = make(chan struct{}); z.credit > reviewBurst {
			t.Errorf("credit %d", z.credit)
		}
		var wg sync.WaitGroup
		for i := range maxReviews {
			wg.Go(func() { send(z, "GET", fmt.Sprint("Bearer good", i)) })
		}
		synctest.Wait()
		if got := send(z, "GET", "Bearer good"); got != http.StatusTooManyRequests {
			t.Errorf("while %d reviews run: %d", maxReviews, got)
		}
		close(v.block)
		wg.Wait()
		if got := send(z, "GET", "Bearer good"); got != http.StatusNotFound {
			t.Errorf("afterwards: %d", got)
		}
	})
}
