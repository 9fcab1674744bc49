package weights

import "testing"

func TestGCD(t *testing.T) {
	for a := range 40 {
		for b := range 40 {
			want := max(a, b)
			for want > 1 && (a%want != 0 || b%want != 0) {
				want--
			}
			if got := GCD(a, b); got != want {
				t.Errorf("gcd of %d and %d: %d, want %d", a, b, got, want)
			}
		}
	}
}

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
