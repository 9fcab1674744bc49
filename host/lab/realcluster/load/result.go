// Package load is the client and the server of tests with real Pods: connections to Services, and what becomes of them.
package load

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// Failure is why a connection failed.
type Failure string

// The failures.
const (
	Refused     Failure = "refused"
	TimedOut    Failure = "timedOut" // no answer
	Reset       Failure = "reset"
	Closed      Failure = "closed" // by the server, in place of an answer
	Unreachable Failure = "unreachable"
	Other       Failure = "other"
)

// Failures counts connections.
type Failures map[Failure]int

// Total returns the number of connections.
func (f Failures) Total() (n int) {
	for _, k := range f {
		n += k
	}
	return n
}

// Result is what a client has seen.
type Result struct {
	Connections int            `json:"connections"` // that succeeded or failed
	Failed      Failures       `json:"failed"`      // without an answer
	Broken      Failures       `json:"broken"`      // after the first answer, other than by the client
	Servers     map[string]int `json:"servers"`     // connections by the server that answered first
	Latency     Latency        `json:"latency"`     // until the first answer
	Seconds     []Second       `json:"seconds"`     // since the start
	Errors      []string       `json:"errors"`      // the first maxErrors, with when they began and ended
}

// maxErrors bounds Result.Errors.
const maxErrors = 50

// Latency is in milliseconds.
type Latency struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// Second is what ended, and which servers answered first, in one second.
type Second struct {
	Failed  Failures       `json:"failed,omitempty"`
	Broken  Failures       `json:"broken,omitempty"`
	Servers map[string]int `json:"servers,omitempty"`
}

// Add adds another client's result, which began at the same time. Of latencies, the larger one counts.
func (r *Result) Add(other *Result) {
	r.Connections += other.Connections
	r.Failed, r.Broken, r.Servers = sum(r.Failed, other.Failed), sum(r.Broken, other.Broken), sum(r.Servers, other.Servers)
	r.Errors = append(r.Errors, other.Errors...)
	r.Latency = Latency{max(r.Latency.Median, other.Latency.Median), max(r.Latency.P99, other.Latency.P99), max(r.Latency.Max, other.Latency.Max)}
	for i, s := range other.Seconds {
		if i == len(r.Seconds) {
			r.Seconds = append(r.Seconds, Second{})
		}
		to := &r.Seconds[i]
		to.Failed, to.Broken, to.Servers = sum(to.Failed, s.Failed), sum(to.Broken, s.Broken), sum(to.Servers, s.Servers)
	}
}

func sum[M ~map[K]int, K comparable](a, b M) M {
	if len(a) == 0 {
		return maps.Clone(b)
	}
	for k, n := range b {
		a[k] += n
	}
	return a
}

// recorder makes a result.
type recorder struct {
	began     time.Time
	result    Result
	latencies []float64
}

func newRecorder() *recorder {
	return &recorder{began: time.Now(), result: Result{Failed: Failures{}, Broken: Failures{}, Servers: map[string]int{}}}
}

func (r *recorder) second() *Second {
	n := int(time.Since(r.began) / time.Second)
	for len(r.result.Seconds) <= n {
		r.result.Seconds = append(r.result.Seconds, Second{})
	}
	return &r.result.Seconds[n]
}

func (r *recorder) answered(server string, after time.Duration) {
	r.result.Connections++
	r.latencies = append(r.latencies, float64(after)/float64(time.Millisecond))
	r.result.Servers[server]++
	count(&r.second().Servers, server)
}

func (r *recorder) failed(err error, to string, began time.Time) {
	f := classify(err)
	if len(r.result.Errors) < maxErrors {
		now := time.Now()
		r.result.Errors = append(r.result.Errors, fmt.Sprintf("%s, %.2f to %.2f s: %s: %v",
			began.Format("15:04:05"), began.Sub(r.began).Seconds(), now.Sub(r.began).Seconds(), to, err))
	}
	r.result.Connections++
	r.result.Failed[f]++
	count(&r.second().Failed, f)
}

func (r *recorder) broke(f Failure) {
	r.result.Broken[f]++
	count(&r.second().Broken, f)
}

func count[M ~map[K]int, K comparable](m *M, key K) {
	if *m == nil {
		*m = M{}
	}
	(*m)[key]++
}

// finish returns the result.
func (r *recorder) finish() *Result {
	slices.Sort(r.latencies)
	if n := len(r.latencies); n > 0 {
		r.result.Latency = Latency{stats.Quantile(r.latencies, .5), stats.Quantile(r.latencies, .99), r.latencies[n-1]}
	}
	return &r.result
}

// classify returns why an operation of a connection failed.
func classify(err error) Failure {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Reset
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Unreachable
	case errors.As(err, &timeout) && timeout.Timeout():
		return TimedOut
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Closed
	}
	return Other
}
