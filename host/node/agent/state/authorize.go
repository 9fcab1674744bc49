package state

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Bounds of an Authorizer. A local user can send what it likes.
const (
	maxToken       = 8 << 10 // bytes
	allowedFor     = time.Minute
	refusedFor     = 10 * time.Second
	maxRemembered  = 256 // tokens
	maxReviews     = 4   // at a time
	reviewInterval = 200 * time.Millisecond
	reviewBurst    = 20
	reviewTimeout  = 10 * time.Second
)

// Errors of a review.
var (
	ErrUnauthenticated = errors.New("the token is not valid for this node")
	ErrForbidden       = errors.New("forbidden")
	errTooMany         = errors.New("too many tokens are being reviewed; try again")
)

// Authorizer decides whether a bearer token may read the state of an agent. It remembers the answers of Review for a while.
type Authorizer struct {
	// Review returns nil for a token that may read the state, an error that wraps ErrUnauthenticated or ErrForbidden for one that
	// may not, and another error if that is not known.
	Review func(ctx context.Context, token string) error
	Now    func() time.Time
	Log    *slog.Logger

	mu         sync.Mutex
	remembered map[[sha256.Size]byte]verdict
	running    int       // reviews
	credit     int       // reviews that may begin at once
	creditAt   time.Time // when credit was computed
}

// verdict is the answer of a review; nil: allowed.
type verdict struct {
	err   error
	until time.Time
}

// Handler serves the resources of the state socket that only read, to callers with a token.
func (z *Authorizer) Handler(a Agent) http.Handler {
	next := handler(a)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			fail(w, errors.New("the state API is read-only"), http.StatusMethodNotAllowed)
			return
		}
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" || len(token) > maxToken {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, errors.New("a bearer token is needed"), http.StatusUnauthorized)
			return
		}
		switch err := z.authorize(r.Context(), token); {
		case errors.Is(err, ErrUnauthenticated):
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			fail(w, err, http.StatusUnauthorized)
		case errors.Is(err, ErrForbidden):
			fail(w, err, http.StatusForbidden)
		case errors.Is(err, errTooMany):
			fail(w, err, http.StatusTooManyRequests)
		case err != nil:
			z.Log.Warn("a token for the state API cannot be reviewed", "err", err)
			fail(w, fmt.Errorf("the token cannot be reviewed: %w", err), http.StatusServiceUnavailable)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// authorize returns the answer of a review, or that of an earlier one.
func (z *Authorizer) authorize(ctx context.Context, token string) error {
	key := sha256.Sum256([]byte(token))
	if err, known := z.begin(key); known {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	err := z.Review(ctx, token)
	z.end(key, err)
	return err
}

// begin returns what is known of a token. Otherwise a review may begin, and end must follow.
func (z *Authorizer) begin(key [sha256.Size]byte) (err error, known bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	now := z.Now()
	if v, ok := z.remembered[key]; ok && now.Before(v.until) {
		return v.err, true
	}
	if z.creditAt.IsZero() {
		z.credit, z.creditAt = reviewBurst, now
	}
	if n := int(now.Sub(z.creditAt) / reviewInterval); n > 0 {
		z.credit, z.creditAt = min(reviewBurst, z.credit+n), z.creditAt.Add(time.Duration(n)*reviewInterval)
	}
	if z.credit == 0 || z.running == maxReviews {
		return errTooMany, true
	}
	z.credit--
	z.running++
	return nil, false
}

// end remembers the answer of a review.
func (z *Authorizer) end(key [sha256.Size]byte, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.running--
	keep := allowedFor
	if err != nil {
		if keep = refusedFor; !errors.Is(err, ErrUnauthenticated) && !errors.Is(err, ErrForbidden) {
			return
		}
	}
	if len(z.remembered) >= maxRemembered {
		clear(z.remembered)
	}
	if z.remembered == nil {
		z.remembered = map[[sha256.Size]byte]verdict{}
	}
	z.remembered[key] = verdict{err, z.Now().Add(keep)}
}
