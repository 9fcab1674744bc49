package agent

import (
	"slices"
	"testing"
	"time"
)

// TestStopHasTimeToLookForKubeProxy: for as long as the kernel takes to list its objects, and no longer without a kube-proxy.
func TestStopHasTimeToLookForKubeProxy(t *testing.T) {
	r := newRig(t, "")
	extended := make(chan time.Duration, 10)
	r.opts.ExtendStop = func(by time.Duration) { extended <- by }
	if err := r.run()(); err != nil {
		t.Fatal(err)
	}
	close(extended)
	var got []time.Duration
	for by := range extended {
		got = append(got, by)
	}
	if want := []time.Duration{lookWithin, 0}; !slices.Equal(got, want) {
		t.Errorf("the time to stop was extended by %v, want %v", got, want)
	}
}
