//! Links with which a reader suggests a change of a page: into the repository that the clone came from.

/// mdBook's name for the template of the link, as a variable of the environment.
pub const VARIABLE: &str = "MDBOOK_OUTPUT__HTML__EDIT_URL_TEMPLATE";

/// The template for a clone of this remote; `None` if it is not of a kind whose links are known.
pub fn template(remote: &str) -> Option<String> {
    let remote = remote.trim();
    let rest = remote.split_once("://").map(|(_, rest)| rest);
    // `git@host:owner/name` has no scheme.
    let path = match rest {
        Some(rest) => rest.to_string(),
        None => remote.split_once('@')?.1.replacen(':', "/", 1),
    };
    // A user, and maybe a password, which must not become part of the book.
    let path = path.rsplit_once('@').map_or(path.as_str(), |(_, path)| path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = path.strip_suffix(".git").unwrap_or(path);
    let (host, name) = path.split_once('/')?;
    let host_name = host.split(':').next().unwrap_or_default();
    let edit = match host_name.split('.').find(|part| ["github", "gitlab"].contains(part))? {
        "gitlab" => "-/edit",
        _ => "edit",
    };
    (name.split('/').count() >= 2)
        .then(|| format!("https://{host_name}/{name}/{edit}/main/book/{{path}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_follows_the_remote() {
        let github = Some("https://github.com/o/r/edit/main/book/{path}".to_string());
        for remote in [
            "https://github.com/o/r.git\n",
            "https://github.com/o/r/",
            "git@github.com:o/r.git",
            "ssh://git@github.com:22/o/r.git",
            "https://user:secret@github.com/o/r",
        ] {
            assert_eq!(template(remote), github, "{remote}");
        }
        let gitlab = Some("https://gitlab.example.org/g/s/r/-/edit/main/book/{path}".to_string());
        assert_eq!(template("https://gitlab.example.org/g/s/r.git"), gitlab);
        for remote in [
            "/home/me/strata",
            "../strata",
            "https://example.org/o/r.git",
            "",
            "https://github.com/r",
        ] {
            assert_eq!(template(remote), None, "{remote}");
        }
    }
}
