//! The node of the project's image; see the library beside it.

fn main() -> anyhow::Result<()> {
    eldest_node::main()
}
