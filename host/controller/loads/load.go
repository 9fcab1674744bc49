package loads

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Bounds of what is written: each write is sent to every node that reads load.
const (
	writeEach    = 10 * time.Second       // at most, with writeEndpoint for each endpoint
	writePerEach = 100 * time.Millisecond // for each endpoint
	messageEach  = time.Minute            // if nothing but the message has changed
	step         = 20                     // a value is written when it has changed by 1/step
	maxBytes     = 256 << 10              // of the values of a Service, the same for each endpoint
	firstWait    = 10 * time.Second       // until all endpoints of a new Service have been asked once
)

// Load is what is to be written of a Service.
type Load struct {
	UID       string // of the Service
	Endpoints []v1alpha1.ReportedLoad
	Reporting int32
	Silent    int32
	Message   string
}

// Interval returns the least time between two writes of the load.
func (l *Load) Interval() time.Duration {
	return writeEach + time.Duration(l.Reporting+l.Silent)*writePerEach
}

// Names returns the Services whose endpoints are asked, sorted.
func (c *Collector) Names() []model.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.services), model.Name.Compare)
}

// Load returns what is to be written of a Service now, nil if there is nothing yet, or no longer.
func (c *Collector) Load(name model.Name) *Load {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	s := c.services[name]
	if s == nil || now.Sub(s.since) < firstWait && !s.tried() {
		return nil
	}
	l := &Load{UID: s.UID}
	room := maxBytes / max(1, len(s.targets))
	for i := 0; i < len(s.targets); {
		addr, why := s.targets[i].Addr, ""
		var values map[string]string
		for ; i < len(s.targets) && s.targets[i].Addr == addr; i++ { // Pods that are said to have one address: the one that answers has it
			if v := s.targets[i].current(now); v != nil && values == nil {
				values = v
			}
			why = cmp.Or(why, s.targets[i].err, "not asked yet")
		}
		if values == nil {
			if l.Silent++; l.Silent == 1 {
				l.Message = addr.String() + ": " + why
			}
			continue
		}
		l.Reporting++
		l.Endpoints = append(l.Endpoints, v1alpha1.ReportedLoad{Address: addr.String(), Values: fit(values, room)})
	}
	if l.Silent += int32(s.omitted); s.omitted > 0 {
		l.Message = strings.TrimPrefix(fmt.Sprintf("%s; %d endpoints beyond the limit are not asked", l.Message, s.omitted), "; ")
	}
	return l
}

func (s *service) tried() bool {
	return !slices.ContainsFunc(s.targets, func(t *target) bool { return !t.tried() })
}

// overhead is what JSON has of an endpoint besides its values, in bytes.
const overhead = 80

// fit returns the values that have room, in bytes: first those with names of ORCA, then by name.
func fit(values map[string]string, room int) map[string]v1alpha1.LoadValue {
	out := make(map[string]v1alpha1.LoadValue, len(values))
	room -= overhead
	own := func(name string) int { return strings.Count(name, "/") }
	for _, name := range slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(own(a)-own(b), cmp.Compare(a, b)) }) {
		if room -= len(name) + len(values[name]) + len(`"":"",`); room < 0 {
			break
		}
		out[name] = v1alpha1.LoadValue(values[name])
	}
	return out
}

// Differs reports whether load differs from what is written, so that it is to be written: an endpoint or a value has come or
// gone, or a value has changed by a step. Age is that of the last write.
func (l *Load) Differs(o *v1alpha1.EndpointLoad, age time.Duration) bool {
	if o == nil || l.Reporting != o.Reporting || l.Silent != o.Silent || len(l.Endpoints) != len(o.Endpoints) || l.Message != o.Message && age > messageEach {
		return true
	}
	written := make(map[string]map[string]v1alpha1.LoadValue, len(o.Endpoints))
	for _, e := range o.Endpoints {
		written[e.Address] = e.Values
	}
	return slices.ContainsFunc(l.Endpoints, func(e v1alpha1.ReportedLoad) bool {
		values, ok := written[e.Address]
		return !ok || !maps.EqualFunc(e.Values, values, near)
	})
}

// near reports whether two values differ by less than a step of the larger one.
func near(a, b v1alpha1.LoadValue) bool {
	if a == b {
		return true
	}
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	return errX == nil && errY == nil && math.Abs(x-y) < math.Max(x, y)/step
}
