package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// Settings are how registries are asked.
type Settings struct {
	DockerConfig string   // file with credentials, config.json of docker login or of a Secret; "": none
	CAFile       string   // certificates of authorities that are trusted beside the system's; "": none
	PlainHTTP    []string // registries that are asked without TLS, as references name them; loopback addresses need none
}

// Options of a Client.
type Options struct {
	Settings
	Timeout   time.Duration                         // of a pull; 0: 2 minutes
	Proxy     func(*http.Request) (*url.URL, error) // nil: that of the environment
	UserAgent string
	// Names are those of the settings in hints; the zero value: those of the configuration.
	Names Names
}

// Names are the names of Settings for the user.
type Names struct{ DockerConfig, CAFile, PlainHTTP string }

const (
	defaultTimeout = 2 * time.Minute
	connectTimeout = 10 * time.Second
	headerTimeout  = 30 * time.Second
	maxRedirects   = 5
	maxHeader      = 64 << 10 // bytes
	maxSecret      = 1 << 20  // of DockerConfig and CAFile, bytes
	maxManifest    = 256 << 10
)

// MaxModule bounds the size of a module, in bytes.
const MaxModule = 16 << 20

// Client pulls from registries, and pushes. It reads its files when it is made, and has no connections between calls.
type Client struct {
	o           Options
	tls         *tls.Config
	credentials auth.CredentialFunc
}

// NewClient returns a client.
func NewClient(o Options) (*Client, error) {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Names = cmp.Or(o.Names, Names{"pluginImages.dockerConfig", "pluginImages.caFile", "pluginImages.plainHTTP"})
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	c := &Client{o: o, credentials: func(context.Context, string) (auth.Credential, error) { return auth.EmptyCredential, nil }}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		text, err := safefile.Read(o.CAFile, maxSecret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Names.CAFile, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool() // there is none in an image without files
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM", o.Names.CAFile, o.CAFile)
		}
		config.RootCAs = pool
	}
	if o.DockerConfig != "" {
		text, err := safefile.Read(o.DockerConfig, maxSecret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Names.DockerConfig, err)
		}
		store, err := credentials.NewMemoryStoreFromDockerConfig(text)
		if err != nil { // without its text, which may have parts of a password
			return nil, fmt.Errorf("%s: %s is not a docker configuration with auths", o.Names.DockerConfig, o.DockerConfig)
		}
		c.credentials = credentials.Credential(store)
	}
	c.tls = config
	return c, nil
}

// isLoopback reports whether a host, with or without a port, is this one by its name or address.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Artifact is a module with the manifest that names it.
type Artifact struct {
	Manifest, Module []byte
}

// Pull pulls a module. Both of its parts have the digests that name them.
func (c *Client) Pull(ctx context.Context, ref imageref.Ref) (a Artifact, err error) {
	err = c.with(ctx, ref.Registry, ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		if a.Manifest, err = c.fetchManifest(ctx, repo, ref); err != nil {
			return err
		}
		layer, err := moduleLayer(a.Manifest)
		if err != nil {
			return err
		}
		a.Module, err = fetch(layer.Size, layer.Digest.String(), func() (io.ReadCloser, error) { return repo.Blobs().Fetch(ctx, layer) })
		if err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
		return nil
	})
	if err != nil {
		return Artifact{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return a, nil
}

// Check returns an error if the registry has no module with a reference. It reads the manifest only.
func (c *Client) Check(ctx context.Context, ref imageref.Ref) error {
	err := c.with(ctx, ref.Registry, ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		manifest, err := c.fetchManifest(ctx, repo, ref)
		if err == nil {
			_, err = moduleLayer(manifest)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	return nil
}

func (c *Client) fetchManifest(ctx context.Context, repo *remote.Repository, ref imageref.Ref) ([]byte, error) {
	return fetch(-1, ref.Digest, func() (io.ReadCloser, error) {
		desc, body, err := repo.Manifests().FetchReference(ctx, ref.Digest)
		if err == nil && desc.Size > maxManifest {
			_ = body.Close()
			return nil, fmt.Errorf("the manifest has %d bytes, the limit is %d", desc.Size, maxManifest)
		}
		return body, err
	})
}

// Resolve returns the reference by digest of a tag.
func (c *Client) Resolve(ctx context.Context, t *imageref.TagError) (ref imageref.Ref, err error) {
	registry, repository := t.Split()
	err = c.with(ctx, registry, repository, func(ctx context.Context, repo *remote.Repository) error {
		desc, err := repo.Resolve(ctx, cmp.Or(t.Tag, "latest"))
		if err != nil {
			return err
		}
		ref, err = imageref.Parse(t.Name + "@" + desc.Digest.String())
		return err
	})
	if err != nil {
		return imageref.Ref{}, fmt.Errorf("image %s:%s: %w", t.Name, cmp.Or(t.Tag, "latest"), err)
	}
	return ref, nil
}

// with calls f with a repository. Loopback addresses that do not speak TLS are asked again without.
func (c *Client) with(ctx context.Context, registry, repository string, f func(context.Context, *remote.Repository) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.Timeout, fmt.Errorf("not complete after %s", c.o.Timeout))
	defer cancel()
	repo, err := remote.NewRepository(registry + "/" + repository)
	if err != nil {
		return err
	}
	try := func(plain bool) error {
		g := newTransport(repo.Reference.Host(), plain, &c.o, c.tls)
		defer g.base.CloseIdleConnections()
		client := &auth.Client{Client: &http.Client{Transport: g, CheckRedirect: g.checkRedirect}, Credential: c.credentials, Cache: auth.NewCache()}
		client.SetUserAgent(cmp.Or(c.o.UserAgent, "sluice"))
		repo.Client, repo.PlainHTTP, repo.MaxMetadataBytes = client, plain, maxManifest
		return f(ctx, repo)
	}
	err = try(slices.Contains(c.o.PlainHTTP, registry))
	if errors.Is(err, http.ErrSchemeMismatch) && isLoopback(registry) {
		err = try(true)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.explain(ctx, registry, err)
}

// explain adds to an error what its reader can do about it.
func (c *Client) explain(ctx context.Context, registry string, err error) error {
	var response *errcode.ErrorResponse
	var unknown x509.UnknownAuthorityError
	with := func(hint string) error { return fmt.Errorf("%w (%s)", err, hint) }
	switch {
	case err == nil:
		return nil
	case errors.Is(err, http.ErrSchemeMismatch):
		return with("to ask it without TLS, list " + registry + " in " + c.o.Names.PlainHTTP)
	case errors.As(err, &unknown):
		return with(c.o.Names.CAFile + " adds authorities")
	case errors.Is(err, auth.ErrBasicCredentialNotFound),
		errors.As(err, &response) && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden):
		switch found, _ := c.credentials(ctx, registry); {
		case c.o.DockerConfig == "":
			return with("without credentials: " + c.o.Names.DockerConfig + " names a file that has some")
		case found == auth.EmptyCredential:
			return with(c.o.DockerConfig + " has no credentials for " + registry)
		default:
			return with("with the credentials in " + c.o.DockerConfig)
		}
	case errors.Is(err, errdef.ErrNotFound), errors.As(err, &response) && response.StatusCode == http.StatusNotFound:
		return errors.New("not found: the registry has no such image, or does not show it")
	}
	return err
}

// fetch reads what open returns, and verifies its size, if that is known, and its digest.
func fetch(size int64, digest string, open func() (io.ReadCloser, error)) ([]byte, error) {
	body, err := open()
	if err != nil {
		return nil, err
	}
	defer body.Close()
	limit := size
	if size < 0 {
		limit = maxManifest
	}
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("more than %d bytes", limit)
	case size >= 0 && int64(len(data)) < size:
		return nil, fmt.Errorf("%d of %d bytes", len(data), size)
	}
	if got := digestOf(data); got != digest {
		return nil, fmt.Errorf("the registry sent something else: digest is %s, want %s", got, digest)
	}
	return data, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
