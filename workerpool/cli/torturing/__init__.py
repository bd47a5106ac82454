"""What `workerpool torture` asks and says: `order` judges the command line, `report` tells what was found."""
