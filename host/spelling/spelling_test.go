package spelling

import (
	"fmt"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	names := []string{"zone-spill", "staged-drain", "slow-start", "a"}
	for s, want := range map[string]string{
		"zonespil": "zone-spill", "Zone_Spill": "zone-spill", "stageddrain": "staged-drain", "capacity": "", "zoen-spill": "zone-spill", "solw-satrt": "slow-start", "b": "", "": "", "a": "",
	} {
		got := DidYouMean(s, names)
		if want != "" {
			want = fmt.Sprintf(" (did you mean %q?)", want)
		}
		if got != want {
			t.Errorf("%s:%s, want%s", s, got, want)
		}
	}
}
