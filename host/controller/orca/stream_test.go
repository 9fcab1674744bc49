package orca

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/orcaserver"
)

// serve runs an HTTP/2 server without TLS on a loopback address.
func serve(t *testing.T, handle http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, addr := orcaserver.Listen(t, "127.0.0.1:0")
	orcaserver.Serve(t, l, handle)
	return addr
}

// raw runs a server that does with connections what it wants.
func raw(t *testing.T, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, addr := orcaserver.Listen(t, "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return addr
}

// stream returns the reports of a stream, until it ends or has had so many, and its error.
func stream(t *testing.T, addr netip.AddrPort, most int) (reports []*Report, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the test has waited for 30 s"))
	defer cancel()
	ctx, enough := context.WithCancelCause(ctx)
	err = Stream(ctx, addr, 10*time.Second, func(r *Report) {
		if reports = append(reports, r); len(reports) == most {
			enough(errors.New("enough"))
		}
	})
	return reports, err
}

func TestReportsAreRead(t *testing.T) {
	message := bytes.Join([][]byte{orcaserver.Number(1, .5), orcaserver.Number(9, .72), orcaserver.Number(6, 120), orcaserver.Number(7, 3), orcaserver.Named(5, "queue", 2), orcaserver.Named(8, "depth", 17), orcaserver.Named(4, "bytes", 1), orcaserver.Number(2, 0)}, nil)
	var asked, path, kind string
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked, path, kind = fmt.Sprintf("% x", body), r.URL.Path, r.Header.Get("Content-Type")+" "+r.Header.Get("Te")
		orcaserver.Answer(w, message)
		<-r.Context().Done()
	})
	reports, err := stream(t, addr, 1)
	if err == nil || err.Error() != "enough" {
		t.Fatal(err)
	}
	const want = "map[application_utilization:0.72 cpu_utilization:0.5 eps:3 mem_utilization:0 named_metrics/depth:17 rps_fractional:120 utilization/queue:2]"
	if got := fmt.Sprint(reports[0].Values); got != want || reports[0].Omitted != 0 {
		t.Errorf("%s, %d omitted, want %s", got, reports[0].Omitted, want)
	}
	if asked != "00 00 00 00 04 0a 02 08 0a" || path != method || kind != "application/grpc trailers" {
		t.Errorf("asked %s of %s as %s", asked, path, kind)
	}
}

// TestHostileServersAreEnded: each within the time of the test, with a reason, and without a report.
func TestHostileServersAreEnded(t *testing.T) {
	head := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0}, n) }
	endless := func(w http.ResponseWriter, r *http.Request) {
		orcaserver.Answer(w)
		for r.Context().Err() == nil {
			_, _ = w.Write(orcaserver.Frame(orcaserver.Number(1, .5)))
			w.(http.Flusher).Flush()
		}
	}
	for _, test := range []struct {
		what, want string
		addr       netip.AddrPort
	}{
		{"giant message", "a message of 4294967295 bytes, more than 65536", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			orcaserver.Answer(w)
			_, _ = w.Write(head(math.MaxUint32))
		})},
		{"message without an end", "the stream ends within a message", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			orcaserver.Answer(w)
			_, _ = w.Write(append(head(1000), 1, 2, 3))
		})},
		{"compressed", "a compressed message", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			orcaserver.Answer(w)
			_, _ = w.Write([]byte{1, 0, 0, 0, 1, 0})
		})},
		{"no protobuf", "no protobuf message", serve(t, func(w http.ResponseWriter, _ *http.Request) { orcaserver.Answer(w, []byte{0x09, 1, 2}) })},
		{"too many names", "more than 1024 named values", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			var m []byte
			for i := range 10_000 {
				if e := orcaserver.Named(8, fmt.Sprint(i), 1); len(m)+len(e) < maxMessage {
					m = append(m, e...)
				}
			}
			orcaserver.Answer(w, m)
		})},
		{"without the service", `gRPC status "12": "unknown service"`, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "12")
			w.Header().Set("Grpc-Message", "unknown service")
		})},
		{"a status at the end", `gRPC status "14": ""`, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status")
			orcaserver.Answer(w)
			w.Header().Set("Grpc-Status", "14")
		})},
		{"an end", "the server has ended the stream", serve(t, func(w http.ResponseWriter, _ *http.Request) { orcaserver.Answer(w) })},
		{"HTTP", "not a gRPC server: HTTP status 404", serve(t, func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) })},
		{"huge headers", "", serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", 1<<20))
			orcaserver.Answer(w)
		})},
		{"a flood of reports", "the server has sent", serve(t, endless)},
		{"no HTTP/2", "", raw(t, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n") })},
		{"SSH", "", raw(t, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH_9.9\r\n"); _, _ = io.Copy(io.Discard, c) })},
		{"a reset", "", raw(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })},
		{"a flood of bytes", "", raw(t, func(c net.Conn) {
			settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
			for {
				if _, err := c.Write(settings); err != nil {
					return
				}
			}
		})},
		{"nobody", "refused", func() netip.AddrPort { l, a := orcaserver.Listen(t, "127.0.0.1:0"); l.Close(); return a }()},
	} {
		begun := time.Now()
		reports, err := stream(t, test.addr, -1)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "the test has waited") {
			t.Errorf("%s: %v, want %q", test.what, err, test.want)
		}
		if len(reports) > 30 || len(reports) > 0 && test.want != "the server has sent" {
			t.Errorf("%s: %d reports in %s", test.what, len(reports), time.Since(begun))
		}
	}
}

func TestValuesThatPluginsCannotSeeAreOmitted(t *testing.T) {
	var many []byte
	for i := range 40 {
		many = append(many, orcaserver.Named(5, fmt.Sprint("u", i), 1)...)
	}
	for _, test := range []struct {
		what            string
		message         []byte
		values, omitted int
	}{
		{"nothing", nil, 0, 0},
		{"NaN", orcaserver.Number(1, math.NaN()), 0, 1},
		{"infinity", orcaserver.Number(1, math.Inf(1)), 0, 1},
		{"negative", orcaserver.Number(1, -.1), 0, 1},
		{"too large", orcaserver.Number(6, 1e12), 0, 1},
		{"a name that is none", orcaserver.Named(8, "a b", 1), 0, 1},
		{"a long name", orcaserver.Named(8, strings.Repeat("a", 64), 1), 0, 1},
		{"invalid UTF-8", orcaserver.Named(8, "\xff", 1), 0, 1},
		{"no name", orcaserver.Named(8, "", 1), 0, 1},
		{"twice", append(orcaserver.Number(1, .1), orcaserver.Number(1, .2)...), 1, 0},
		{"many", many, MaxValues, 40 - MaxValues},
		{"unknown fields", append(orcaserver.Named(77, "x", 1), orcaserver.Number(78, 1)...), 0, 0},
	} {
		r, err := Parse(test.message)
		if err != nil || len(r.Values) != test.values || r.Omitted != test.omitted {
			t.Errorf("%s: %+v, %v, want %d values and %d omitted", test.what, r, err, test.values, test.omitted)
		}
	}
}

func TestNumbersHaveTwoDigits(t *testing.T) {
	for n, want := range map[float64]string{0: "0", .725: "0.72", .999: "1", 1: "1", 123.4: "120", 98_765: "99000", 1e-7: "0", .00012345: "0.00012", maxNumber: "999999999999", 5e11: "500000000000"} {
		if got := Text(n); got != want {
			t.Errorf("%g: %s, want %s", n, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(append(orcaserver.Number(1, .5), orcaserver.Named(5, "queue", 1)...))
	f.Add([]byte{0x2a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := Parse(message)
		if err != nil {
			return
		}
		if len(r.Values) > MaxValues {
			t.Fatalf("%d values", len(r.Values))
		}
		for name, v := range r.Values {
			if text := Text(v); len(text) > 24 || strings.ContainsAny(text, "eENI-+") {
				t.Fatalf("%s: %g is %s", name, v, text)
			}
		}
	})
}
