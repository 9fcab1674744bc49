package weights

import "testing"

func TestListOutsideItsLengthIsNamed(t *testing.T) {
	for n, want := range map[int]string{0: "a[1].b: 0 b, want 1 to 3", 1: "", 3: "", 4: "a[1].b: 4 b, want 1 to 3"} {
		got := ""
		if err := CheckLen("a[1].b", n, 3); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
