package imageref

import (
	"errors"
	"strings"
	"testing"
)

func TestReferencesAreParsed(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for text, want := range map[string]Ref{
		"ghcr.io/acme/spill@" + digest:          {"ghcr.io", "acme/spill", digest},
		"registry:5000/spill:v1.2@" + digest:    {"registry:5000", "spill", digest},
		"localhost/a__b/c-d.e@" + digest:        {"localhost", "a__b/c-d.e", digest},
		"[fd00::1]:5000/spill@" + digest:        {"[fd00::1]:5000", "spill", digest},
		"127.0.0.1:65535/x/y/z/spill@" + digest: {"127.0.0.1:65535", "x/y/z/spill", digest},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s: %+v, %v", got, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                                      "begin with a registry",
		"spill@" + digest:                       "begin with a registry",
		"acme/spill@" + digest:                  "begin with a registry",
		"https://ghcr.io/spill@" + digest:       "without a scheme",
		"user:secret@ghcr.io/spill@" + digest:   "a user before the registry",
		"https://u:secret@ghcr.io/spill:v1":     "a user before the registry",
		"ghcr.io/Acme/spill@" + digest:          "not a name of a repository",
		"ghcr.io/../spill@" + digest:            "not a name of a repository",
		"ghcr.io/@" + digest:                    "not a name of a repository",
		"ghcr.io/spill:-@" + digest:             "not a tag",
		"ghcr.io/spill@" + digest[:20]:          "64 lowercase",
		"ghcr.io/spill@" + digest + "0":         "64 lowercase",
		"ghcr.io/spill@sha512:" + digest[7:]:    "64 lowercase",
		"ghcr.io/" + strings.Repeat("a/", 2000): "the limit is 1024",
		"ghcr.io/spill:v1":                      "tag v1 can change: write ghcr.io/spill@sha256:…",
		"ghcr.io/spill":                         "whatever is latest: write ghcr.io/spill@sha256:…",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if _, tag := IsTag(err); tag != strings.Contains(want, "write") {
			t.Errorf("%s: IsTag %t", text, tag)
		}
	}
	if _, ok := IsTag(errors.Join(errors.New("other"), &TagError{"a.b/c", "v1"})); !ok {
		t.Error("a joined error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ghcr.io/acme/spill:v1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r || strings.ContainsAny(r.Hex(), "./") {
			t.Errorf("%q: %+v, then %+v, %v", text, r, again, err)
		}
	})
}
