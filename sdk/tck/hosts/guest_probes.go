package hosts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

func (r *run) loads() {
	for _, name := range []string{"good", "earlier-minor"} {
		r.concludeKeeps(Loads, name)
	}
}

func (r *run) laterMinor() { r.concludeKeeps(LaterMinor, "later-minor") }

// concludeKeeps concludes a requirement by whether a guest that keeps the shares loads and decides.
func (r *run) concludeKeeps(id, name string) {
	q := ordinary(7)
	got, err := r.call(Guest(name), nil, q)
	if err == nil {
		err = keeps(q, got)
	}
	r.conclude(id, "guests/"+name+".wat", err)
}

// calls decides in another order of sizes and settings than a guest could expect.
func (r *run) calls() {
	if r.fail(Calls, "guests/calls.wat: load", r.load("guest", Guest("calls"), nil)) {
		return
	}
	defer r.unload("guest")
	one, two := `{"a":1}`, `{"a":2}`
	for i, c := range []struct {
		n        int
		settings *string
	}{{3, nil}, {0, nil}, {1000, &one}, {3, &two}, {3, &one}, {1001, nil}, {4, &two}} {
		q := ordinary(c.n)
		q.Generation = uint64(i + 1)
		got, err := r.decide("guest", q, c.settings)
		if err == nil {
			err = keeps(q, got)
		}
		if r.conclude(Calls, fmt.Sprintf("guests/calls.wat: request %d, with %d endpoints", i+1, c.n), err) {
			return
		}
	}
}

// imports compares the random numbers and the time of several decisions and instances.
func (r *run) imports() {
	var first []byte
	for range 2 {
		if r.fail(Imports, "guests/wasi.wat: load", r.load("guest", Guest("wasi"), nil)) {
			return
		}
		for i := range 2 {
			q := special(3)
			q.Generation = uint64(i + 1)
			got, err := r.decide("guest", q, nil)
			switch {
			case err != nil:
			case len(got.State) != 24:
				err = fmt.Errorf("a state of %d bytes, the guest has returned 24", len(got.State))
			case first == nil:
				first = got.State
			case !bytes.Equal(first[:16], got.State[:16]):
				err = fmt.Errorf("random_get returns %x and %x in two instances or decisions", first[:16], got.State[:16])
			case !bytes.Equal(first, got.State):
				err = errors.New("the clock of one instance or decision is not that of another")
			}
			if r.conclude(Imports, "guests/wasi.wat", err) {
				return
			}
		}
		r.unload("guest")
	}
}

func (r *run) settings() {
	if r.fail(Settings, "guests/echo.wat: load", r.load("guest", Guest("echo"), tell(0, nil, nil))) {
		return
	}
	defer r.unload("guest")
	var texts [3]*string
	for i := range texts { // each answers another share
		wire := binary.LittleEndian.AppendUint32([]byte("SLRP"), 72)
		for _, v := range []uint32{56, 56, 1, 16, 0, 0, 0, 0, 0, 0, 0, 0, uint32(100 + i), 0, abi.NeverReset, abi.NoReasonIndex} {
			wire = binary.LittleEndian.AppendUint32(wire, v)
		}
		texts[i] = tell(0, nil, wire)
	}
	for n, i := range []int{0, 1, 0, 2, 2, 1} {
		q := special(1)
		q.Generation = uint64(n + 1)
		got, err := r.decide("guest", q, texts[i])
		if err == nil && got.Results[0].Value != uint32(100+i) {
			err = fmt.Errorf("share %d, the plugin answers %d with these settings", got.Results[0].Value, 100+i)
		}
		if r.conclude(Settings, fmt.Sprintf("guests/echo.wat: decision %d, settings %d", n+1, i), err) {
			return
		}
	}
}

// strings sends requests whose names come and go.
func (r *run) strings() {
	if r.fail(Strings, "guests/strings.wat: load", r.load("guest", Guest("strings"), nil)) {
		return
	}
	defer r.unload("guest")
	for n := range 20 {
		q := special(5)
		q.Generation, q.Namespace, q.Service = uint64(n+1), fmt.Sprint("namespace-", n%3), fmt.Sprint("service-", n%4)
		for i := range q.Endpoints {
			q.Endpoints[i].Node = fmt.Sprint("node-", (n*7+i)%11)
		}
		q.Zone = fmt.Sprint("zone-", n%5)
		got, err := r.decide("guest", q, nil)
		if err == nil {
			err = keeps(q, got)
		}
		if r.conclude(Strings, fmt.Sprintf("guests/strings.wat: request %d", n+1), err) {
			return
		}
	}
}

// manyEndpoints compares digests of endpoints: guests/echo.wat says of what.
func (r *run) manyEndpoints() {
	if r.fail(ManyEndpoints, "guests/echo.wat: load", r.load("guest", Guest("echo"), nil)) {
		return
	}
	defer r.unload("guest")
	for n, size := range []int{60, 5000, 61, 1000} { // too long for the echo
		q := special(size)
		q.Generation = uint64(n + 1)
		got, err := r.decide("guest", q, nil)
		for i := 0; err == nil && i < size; i++ {
			if want := digestOf(&q.Endpoints[i]); got.Results[i].Value != want {
				err = fmt.Errorf("results[%d].value is %d, want %d: the guest has read another endpoint, or the result is that of another one", i, got.Results[i].Value, want)
			}
		}
		if r.conclude(ManyEndpoints, fmt.Sprintf("guests/echo.wat: %d endpoints", size), err) {
			return
		}
	}
}

func digestOf(e *abi.Endpoint) uint32 {
	le := binary.LittleEndian
	addr := e.Addr.Addr().As16()
	b := le.AppendUint16(addr[:], e.Addr.Port())
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, e.Conditions), e.Capacity), e.Share)
	b = le.AppendUint64(le.AppendUint64(b, uint64(e.ReadySince)), uint64(e.TerminatingSince))
	b = le.AppendUint32(le.AppendUint32(b, uint32(e.PriorWeight)), uint32(e.Group))
	h := fnv.New32a()
	h.Write(append(append(b, e.Node...), e.Zone...))
	return 1 + h.Sum32()&0x7fffffff
}

// discards asks an instance that has failed whether it is called again.
func (r *run) discards() {
	const what = "guests/remembers.wat"
	if r.fail(Discards, what+": load", r.load("guest", Guest("remembers"), nil)) {
		return
	}
	defer r.unload("guest")
	q := special(3)
	_, err := r.decide("guest", q, nil)
	if err == nil {
		err = errors.New("a call that traps has not failed")
	}
	if !isRefusal(err) {
		r.fail(Discards, what, err)
		return
	}
	q.Generation = 2
	got, err := r.decide("guest", q, nil)
	if err == nil {
		err = keeps(q, got)
	}
	r.conclude(Discards, what, err)
}

// combines compares the weights that are in force with the capacities, shares and groups of reference guests.
func (r *run) combines() {
	if !r.enforces {
		r.found[Combines] = tck.Skipped("the adapter has no operation enforce")
		return
	}
	for _, c := range []struct {
		guest string
		last  uint32 // conditions of the last endpoint
		want  []uint16
	}{
		{"affinity", 0, []uint16{7, 1, 0}},
		{"groups", abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, []uint16{4, 9, 3}},
		{"groups", 0, []uint16{1, 3, 0}},
		{"reduce", 0, []uint16{1, 2, 0}},
		{"reduce", abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, []uint16{1, 2, 2}},
	} {
		what := fmt.Sprintf("guests/%s.wat, the last endpoint with the conditions %d", c.guest, c.last)
		if r.fail(Combines, what+": load", r.load("guest", Guest(c.guest), nil)) {
			continue
		}
		q := special(3)
		q.Endpoints[2].Conditions = c.last
		a, err := r.do(&Command{Op: OpEnforce, Plugin: "guest", Request: WithoutNulls(q)})
		switch {
		case err != nil:
		case a.Error != "":
			err = refusal(a.Error)
		case !slices.Equal(a.Weights, c.want):
			err = fmt.Errorf("the weights %d are in force, want %d", a.Weights, c.want)
		}
		r.conclude(Combines, what, err)
		r.unload("guest")
	}
}

// lastGood makes calls fail between two that do not.
func (r *run) lastGood() {
	if !r.enforces {
		r.found[LastGood] = tck.Skipped("the adapter has no operation enforce")
		return
	}
	const what = "guests/affinity.wat"
	if r.fail(LastGood, what+": load", r.load("guest", Guest("affinity"), nil)) {
		return
	}
	defer r.unload("guest")
	for i, affinity := range []time.Duration{0, time.Minute, time.Hour, 0} {
		q := special(3)
		q.Generation, q.Now, q.SessionAffinityMS = uint64(i+1), q.Now+int64(i)*600_000, affinity.Milliseconds()
		a, err := r.do(&Command{Op: OpEnforce, Plugin: "guest", Request: WithoutNulls(q)})
		switch fails := affinity != 0; {
		case err != nil:
		case fails && a.Error == "":
			err = errors.New("the call has not failed")
		case !fails && a.Error != "":
			err = refusal(a.Error)
		case !slices.Equal(a.Weights, []uint16{7, 1, 1}):
			err = fmt.Errorf("the weights %d are in force, the last good decision is 7, 1, 1", a.Weights)
		}
		if r.conclude(LastGood, fmt.Sprintf("%s: decision %d, with a session affinity of %v", what, i+1, affinity), err) {
			return
		}
	}
}
