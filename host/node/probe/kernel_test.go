package probe

import "testing"

func TestKernelVersions(t *testing.T) {
	for release, want := range map[string]State{
		"6.12.5-amd64": OK, "5.10.0": OK, "5.9.16": Warning, "4.18.0-553.el8": Warning, "7.0": OK, "what": Unknown, "": Unknown,
	} {
		if f := kernelFinding(release); f.State != want || (f.State == Warning) != (f.Impact != "") {
			t.Errorf("%q: %+v", release, f)
		}
	}
	if f := Kernel(); f.State == Unknown {
		t.Errorf("%+v", f)
	}
}
