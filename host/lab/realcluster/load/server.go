package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server answers with its name, and at /source with the client's address too.
type Server struct {
	Name string
	// Drain is how long the server goes on when it shall end, with new connections too.
	Drain time.Duration
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/source" {
		fmt.Fprintln(w, s.Name)
		return
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprintln(w, s.Name, from)
}

// Serve serves until the context ends and Drain has passed. Then it stops accepting connections and closes those that it has.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(s.answer),
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
