package meter

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
)

//go:embed advice.go body.go cost.go doc.go emit.go error.go instruction.go instruction_prefixed.go limits.go meter.go module.go
//go:embed names.go operands.go outline.go reader.go replace.go sections.go segments.go version.go work.go
var sources embed.FS

// Version identifies what Rewrite does: it is a digest of the source of this package. Code that has been compiled from a
// rewritten module is valid for the version that has rewritten it.
func Version() string {
	h := sha256.New()
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		h.Write([]byte(path + "\x00"))
		h.Write(text)
		return err
	})
	if err != nil {
		panic(err) // impossible: the files are part of the program
	}
	return hex.EncodeToString(h.Sum(nil))
}
