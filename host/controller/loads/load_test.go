package loads

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller/orca"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestNamespacesShareTheBounds: of one that wants too much and of others.
func TestNamespacesShareTheBounds(t *testing.T) {
	var names []model.Name
	for i := range 500 {
		names = append(names, model.Name{Namespace: "large", Name: fmt.Sprintf("s%03d", i)})
	}
	for i := range 20 {
		names = append(names, model.Name{Namespace: "small", Name: fmt.Sprintf("s%03d", i)})
	}
	chosen := map[string]int{}
	for _, name := range Choose(names) {
		chosen[name.Namespace]++
	}
	if got := fmt.Sprint(chosen); got != fmt.Sprintf("map[large:%d small:20]", MaxServices-20) {
		t.Error(got)
	}
	var all []Service
	for i := range 20 {
		all = append(all, of(fmt.Sprintf("large/s%02d", i), uint16(i+1), many(1200)...))
	}
	all = append(all, of("small/web", 1, many(1000)...))
	admitted, omitted := admit(all)
	kept := map[string]int{}
	for _, s := range admitted {
		kept[s.Name.Namespace] += len(s.Endpoints)
	}
	if got := fmt.Sprint(kept, omitted); got != fmt.Sprintf("map[large:%d small:1000] %d", maxStreams-1000, 20*1200+1000-maxStreams) {
		t.Error(got)
	}
	if first := admitted[0]; len(first.Endpoints) != maxEndpoints || first.Endpoints[0].Addr.String() != "127.1.0.0" {
		t.Errorf("%d endpoints", len(first.Endpoints))
	}
	for wanted, want := range map[string]string{"1 1 1": "1 1 1", "9 9 9": "3 3 4", "1 9 9": "1 4 5", "0 2 90": "0 2 8", "30 30 30": "3 3 4"} {
		var a, b, c int
		_, _ = fmt.Sscan(wanted, &a, &b, &c)
		got := share(map[string]int{"a": a, "b": b, "c": c}, 10)
		if text := fmt.Sprint(got["a"], " ", got["b"], " ", got["c"]); text != want {
			t.Errorf("%s: %s, want %s", wanted, text, want)
		}
	}
}

// TestLoadOfALargeServiceFits: names that endpoints invent displace none of ORCA's own.
func TestLoadOfALargeServiceFits(t *testing.T) {
	c := New(Options{})
	s := of("a/web", 1, many(1100)...)
	c.Set([]Service{s})
	values := map[string]float64{}
	for _, name := range []string{"application_utilization", "cpu_utilization", "mem_utilization", "rps_fractional", "eps"} {
		values[name] = 123_456_789_012
	}
	for i := range orca.MaxValues - len(values) {
		values[fmt.Sprintf("named_metrics/%d%s", i, strings.Repeat("a", 60))] = 123_456_789_012
	}
	for _, target := range c.targets {
		c.report(target, &orca.Report{Values: values})
	}
	l := c.Load(s.Name)
	text, err := json.Marshal(l.Endpoints)
	if err != nil || len(text) > maxBytes || len(l.Endpoints) != maxEndpoints {
		t.Errorf("%d endpoints, %d bytes, %v", len(l.Endpoints), len(text), err)
	}
	t.Logf("%d bytes of %d", len(text), maxBytes)
	for _, e := range l.Endpoints {
		if len(e.Values) < 5 || e.Values["rps_fractional"] != "120000000000" {
			t.Fatalf("%v", e)
		}
	}
	if l.Silent != 100 || l.Message != "100 endpoints beyond the limit are not asked" || l.Interval() != 120*time.Second {
		t.Errorf("%d silent, %s, %s", l.Silent, l.Message, l.Interval())
	}
}

func TestLoadIsWrittenWhenItHasChanged(t *testing.T) {
	load := func(text string) (out []v1alpha1.ReportedLoad) {
		for e := range strings.FieldsSeq(text) {
			addr, rest, _ := strings.Cut(e, "=")
			r := v1alpha1.ReportedLoad{Address: netip.MustParseAddr(addr).String(), Values: map[string]v1alpha1.LoadValue{}}
			for i, v := range strings.Split(rest, ",") {
				r.Values[[]string{"eps", "rps_fractional"}[i]] = v1alpha1.LoadValue(v)
			}
			out = append(out, r)
		}
		return out
	}
	for _, test := range []struct {
		written, now string
		differs      bool
	}{
		{"10.0.0.1=1", "10.0.0.1=1", false},
		{"10.0.0.1=100", "10.0.0.1=104", false},
		{"10.0.0.1=104", "10.0.0.1=100", false},
		{"10.0.0.1=0.72", "10.0.0.1=0.75", false},
		{"10.0.0.1=95", "10.0.0.1=100", true},
		{"10.0.0.1=100", "10.0.0.1=95", true},
		{"10.0.0.1=0", "10.0.0.1=0.000001", true},
		{"10.0.0.1=x", "10.0.0.1=1", true},
		{"10.0.0.1=1", "10.0.0.1=1,0", true},
		{"10.0.0.1=1,0", "10.0.0.1=1", true},
		{"10.0.0.1=1", "10.0.0.2=1", true},
		{"10.0.0.1=1 10.0.0.2=1", "10.0.0.2=1 10.0.0.1=1", false},
		{"10.0.0.1=1", "10.0.0.1=1 10.0.0.2=1", true},
		{"10.0.0.1=1", "", true},
	} {
		l := &Load{Endpoints: load(test.now)}
		if got := l.Differs(&v1alpha1.EndpointLoad{Endpoints: load(test.written)}, time.Hour); got != test.differs {
			t.Errorf("%s, then %s: %t", test.written, test.now, got)
		}
	}
	o := &v1alpha1.EndpointLoad{Message: "refused"}
	for _, test := range []struct {
		load    Load
		age     time.Duration
		differs bool
	}{
		{Load{Message: "timeout"}, time.Second, false},
		{Load{Message: "timeout"}, 2 * messageEach, true},
		{Load{Message: "refused", Silent: 1}, time.Second, true},
		{Load{Message: "refused", Reporting: 1}, time.Second, true},
	} {
		if got := test.load.Differs(o, test.age); got != test.differs {
			t.Errorf("%+v after %s: %t", test.load, test.age, got)
		}
	}
	if !(&Load{}).Differs(nil, 0) {
		t.Error("nothing is written yet")
	}
}
