package source

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestTriggerTimeIsParsedAndNotCompared(t *testing.T) {
	with := func(annotation string) *model.EndpointSlice {
		s, _, problems := Slice(slice(func(o *discoveryv1.EndpointSlice) {
			o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: annotation}
		}))
		if len(problems) > 0 {
			t.Errorf("%q: a problem, although nothing depends on it: %v", annotation, problems)
		}
		return s
	}
	none, _, _ := Slice(slice(func(*discoveryv1.EndpointSlice) {}))
	for annotation, want := range map[string]int64{
		"": 0, "yesterday": 0,
		"2026-01-02T03:04:05Z":              1767323045000,
		"2026-01-02T03:04:05.678901234Z":    1767323045678,
		"2026-01-02T04:04:05.678+01:00":     1767323045678,
		"2026-01-02T03:04:05.678901234Zzzz": 0,
	} {
		s := with(annotation)
		if s.Trigger != want {
			t.Errorf("%q: %d, want %d", annotation, s.Trigger, want)
		}
		if !s.SameContent(none) || !none.SameContent(s) {
			t.Errorf("%q: the trigger makes it another slice", annotation)
		}
	}
	other, _, _ := Slice(slice(func(o *discoveryv1.EndpointSlice) { o.Endpoints[0].Conditions.Ready = ptr(false) }))
	if other.SameContent(none) || none.SameContent(nil) {
		t.Error("slices that differ are the same")
	}
}

func TestVersionIsParsedAndNotCompared(t *testing.T) {
	none, _, _ := Slice(slice(func(*discoveryv1.EndpointSlice) {}))
	for text, want := range map[string]uint64{"": 0, "0": 0, "4711": 4711, "-1": 0, "12a": 0, "18446744073709551615": 1<<64 - 1, "18446744073709551616": 0} {
		s, _, problems := Slice(slice(func(o *discoveryv1.EndpointSlice) { o.ResourceVersion = text }))
		if s.Version != want || len(problems) > 0 || !s.SameContent(none) {
			t.Errorf("%q: %d, want %d; problems %v, same content %v", text, s.Version, want, problems, s.SameContent(none))
		}
	}
}
