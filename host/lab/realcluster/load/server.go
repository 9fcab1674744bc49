package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server answers with its name.
type Server struct {
	Name string
	// Drain is how long the server goes on when it shall end, with new connections too.
	Drain time.Duration
}

// Serve serves until the context ends and Drain has passed. Then it stops accepting connections and closes those that it has.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.Name) }),
		ReadHeaderTimeout: time.Minute,
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-ctx.Done():
		case <-stop:
			return
		}
		sleep(context.WithoutCancel(ctx), s.Drain)
		_ = server.Close()
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve at %s: %w", l.Addr(), err)
	}
	return nil
}
